// Package clouds opens the one cloud that provider.yaml names, for Kip and for kipctl. It knows the package of each cloud that ships, and
// calls none of their methods. A program says which clouds it can open.
package clouds
