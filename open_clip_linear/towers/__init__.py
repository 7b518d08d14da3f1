"""Where the attention kinds meet OpenCLIP's towers."""
