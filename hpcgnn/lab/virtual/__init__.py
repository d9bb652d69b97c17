"""Virtual hosts: network namespaces of this machine, joined by links of a given speed, and jobs on them."""
