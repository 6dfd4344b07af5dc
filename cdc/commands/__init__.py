"""The verbs, one file each. ``cdc.commands.app`` lists them; each imports the rooms it needs only when it runs."""
