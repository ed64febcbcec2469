// Package tunnel owns the connections between Kip and its cells, both ends of
// them: joining, mutual TLS, and HTTP in both directions. It knows nothing of
// pods, and does not decide what a cell may ask: that is the cell API's, whose
// handler it is given.
//
// Kip dials, always, with TLS 1.3 and its client certificate; a cell refuses
// everybody else within the handshake, whatever they want. Each connection
// offers exactly one protocol by ALPN:
//
//	kip-join/1      once in a cell's life: proves the token both ways, gets
//	                the cell its certificate (see join.go)
//	kip-cell-api/1  the one connection that a session keeps open: HTTP/2 with
//	                the sides changed. Kip, which dialled, is the server; the
//	                cell's requests to the cell API come this way
//	h2              Kip's requests to the agent; dialled when there are any,
//	                closed when there were none for a while
//	http/1.1        a request that somebody reads as slowly as he likes (logs), or
//	                that upgrades (exec, attach, port-forward): a connection of
//	                its own
//
// So an idle cell costs one connection, and a session is connected while
// kip-cell-api/1 is up. Both ends ping on it, and on h2, when they hear nothing.
// Kip's end closes a connection that stays silent, but not for what it was itself too
// late to hear. The cell's end is patient: a Kip that was stopped finds it as it was.
//
// Connections begin at a bounded rate, those first that matter most (see turns). All but
// a cell's first, within the same two processes, resume TLS; who the other end is
// is judged again all the same.
//
// Who the other end is: the cell demands a client certificate named "kip" by
// the authority whose hash came with its user data, or by one that Kip has told it of
// since (see move.go and trust.go). Kip demands a certificate for this very cell with
// the very key recorded at the join, and before there is one by its authority. Of two
// Kips the cell refuses the one with the lower term, as its certificate says it.
package tunnel
