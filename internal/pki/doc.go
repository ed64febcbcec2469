// Package pki owns who is who: Kip's certificate authority, the certificates of
// Kip and of its cells, and the one-time tokens that cells join with. It does
// no I/O: keeping the authority is the store's work, and speaking TLS the
// tunnel's.
//
// There are three kinds of leaf certificates, and none can pass for another:
//
//   - Kip's client certificate: common name "kip", client authentication only.
//     It lives a day and is renewed in memory, its key is never stored.
//   - A cell's certificate: one URI, kip://cell/ID, server authentication only.
//     It is issued anew, for the same key, when the authority is rotated, and lives as
//     long as that: what ends a cell's identity is the end
//     of its record, since Kip accepts only the very key it recorded at the
//     join, and dials only cells that it has.
//   - A server certificate for Kip's own port: names and addresses, server
//     authentication only, no URI. It lives a month and is renewed in memory.
package pki
