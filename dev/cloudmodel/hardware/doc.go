// Package hardware owns what is real behind the model of a cloud: a machine of this host for each instance, and its disks; and on the
// bridge that machines are on, what a cloud has on its networks: the addresses of its metadata service and its clock, gateways to the
// internet, and DHCP for virtual machines. What the model answers its cloud's package decides, how a machine is made internal/cloud/local
// and internal/cloud/qemu. It must not know a cloud.
package hardware
