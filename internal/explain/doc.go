// Package explain says what Kip does and why: where a pod stands, what was chosen for it
// and what that costs, what each cell is and waits for. It decides nothing: the choice
// that it shows is the one that package pods makes.
package explain
