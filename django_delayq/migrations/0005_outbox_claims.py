from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('django_delayq', '0004_outbox_delays'),
    ]

    operations = [
        migrations.RemoveField(
            model_name='outboxjob',
            name='moved_by',
        ),
    ]
