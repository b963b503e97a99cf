"""The command line: parsing only. `monograph.report.commands` holds the work of each command."""
