"""What makes the site's pages from the source. Nothing here is installed."""
