"""Files and manifests, on local folders and object stores."""
