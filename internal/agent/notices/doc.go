// Package notices owns asking EC2's metadata service, on the machine itself, whether the cloud
// takes the machine back, and telling Kip. It changes nothing on the machine.
package notices
