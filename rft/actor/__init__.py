"""The resident actor: gpt-oss over packed sequences, with frozen experts that stay in MXFP4 in the device's memory."""
