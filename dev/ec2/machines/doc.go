// Package machines owns what is real behind a model of EC2: a local cell of this host for
// each instance, and the metadata service on their network. What EC2 answers is decided by
// package ec2, how a machine is made by internal/cloud/local.
package machines
