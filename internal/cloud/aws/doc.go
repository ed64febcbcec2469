// Package aws owns Amazon EC2 as a cloud: its calls, its errors, what it sells. It must
// not know how a launch is decided on, keep state, or retry.
package aws
