"""What every stage stands on: configuration, errors, identifiers, tables of variants, the log."""

import os

# Read when huggingface_hub is imported. Without it, every look into its cache asks the hub what may
# be put into a user agent, even where only local files are wanted.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
