// Package servingcert owns the certificate of a kubelet port that a signer of the cluster
// signs: its key, its requests and its renewal. It must not know of pods, cells or clouds.
package servingcert
