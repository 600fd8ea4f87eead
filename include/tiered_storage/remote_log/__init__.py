"""KIP-405: what is copied where, what is known of it, how it is read, and when it goes."""
