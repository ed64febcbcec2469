// Package sources owns what strangers may use of a port: it shares connections, and places for
// what takes memory, among the addresses that they come from, so that a flood from one address
// turns away itself. It must not know what they ask for.
package sources
