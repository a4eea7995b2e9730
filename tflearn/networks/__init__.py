"""Networks for `make_network`, and layers for `preprocessing_layers`."""
