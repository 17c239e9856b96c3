"""What every stage uses: configuration, errors, identifiers, tables of variants, the log."""

import os

# Read when huggingface_hub is imported. Without it, every look into its cache sends a request to
# the hub about the user agent, even where only local files are needed.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
