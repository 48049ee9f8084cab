"""What tests on a cluster stand on: the cluster, its images, an S3 server in it, faults, evidence of failures."""
