// Package credentialproviders owns what a kubelet takes of credential provider plugins: an entry of its CredentialProviderConfig, and what
// is wrong with one. It must not run one. Pure.
package credentialproviders
