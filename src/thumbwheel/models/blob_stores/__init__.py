"""Where blobs can be: `folder`, and `bucket`. A variant is one file, and a case of
`blob_location.open_store`."""
