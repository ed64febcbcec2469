// Package host owns what the machines on one's own host have in common, of
// whatever kind they are: their records, their bridge and addresses, the disks of
// volumes, consoles, interruptions, and the order in which all of it is made and
// removed. It must not know how a machine is made, which is for a Kind, nor why
// one is launched.
//
// The state folder is the cloud's database. It holds one folder a machine, and a
// machine's record is written before anything else of it exists, so that whoever
// comes next, after a kill -9 at any moment, finds what was made and either adopts
// it or removes it. Machines outlive the process that launched them, and stopped
// ones the host's reboot.
package host
