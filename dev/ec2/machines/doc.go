// Package machines owns the account of a model of EC2 whose instances are real, and its servers: subnets, types, policies, images. What
// stands behind instances is package cloudmodel/hardware's, and what EC2 answers package ec2's.
package machines
