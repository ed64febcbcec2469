// Package calls owns when a call to a cloud is sent. Each kind of call has a line of
// its own: its budget, its back-off, and how many are under way. It must not know why
// a call is made, nor keep anything that a restart would lose.
//
// What waits for the same budget and names instances goes in one call. A launch is
// not merged here, since it is stored before it is sent: whoever launches takes a
// Turn first, then decides what goes into the call.
package calls
