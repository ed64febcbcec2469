// Package sources owns who comes to a port: it tells the addresses that connections come from apart, and shares connections among
// them, so that a flood from one address turns away itself. It must not know what they ask for.
package sources
