// Package logind owns the part of systemd-logind's D-Bus interface by which a kubelet hears that its
// machine ends, and delays that until its pods have ended: Graceful Node Shutdown, on a machine that
// has no systemd. It ends nothing itself.
package logind
