from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="order",
            name="version",
            field=models.PositiveIntegerField(default=1, help_text="Counts the changes of the status."),
        ),
        migrations.AddField(
            model_name="event",
            name="request",
            field=models.CharField(blank=True, default="", help_text="The click that led to it.", max_length=40),
            preserve_default=False,
        ),
        migrations.RemoveField(model_name="campaign", name="nightly"),
    ]
