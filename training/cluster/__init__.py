"""Ray on this machine or a cluster."""
