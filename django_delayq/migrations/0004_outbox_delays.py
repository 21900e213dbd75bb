import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_delayq', '0003_history'),
    ]

    operations = [
        migrations.AddField(
            model_name='outboxjob',
            name='delay_from',
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
        ),
        migrations.AddField(
            model_name='outboxjob',
            name='delay_ms',
            field=models.BigIntegerField(default=0, editable=False),
        ),
        migrations.AddField(
            model_name='outboxjob',
            name='moved_by',
            field=models.UUIDField(editable=False, null=True),
        ),
        migrations.AlterField(
            model_name='outboxjob',
            name='due_ms',
            field=models.BigIntegerField(null=True, verbose_name='due'),
        ),
    ]
