"""What a run keeps: its directory, locks, numbered versions, manifests, digests,
copies in object stores.
"""
