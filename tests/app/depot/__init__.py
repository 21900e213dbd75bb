"""An installed app whose tasks are run by real workers."""
