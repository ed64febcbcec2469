// Package trial proves in a user's own cluster and cloud account what no model of a cloud can: that pods of Kip run there. It owns
// what it makes, all of it in one namespace, and removes it. It touches nothing else, and asks a cloud only by Kip.
//
//	trial.go   the run: what is made first, the steps, what is removed at last
//	steps.go   the steps
//	pods.go    pods: how they are made and waited for
//	price.go   what a trial may cost
//	clean.go   what is left of trials, and how it goes
//	report.go  what a user sees of it
package trial
