// Package clouds opens the one cloud that provider.yaml names, for Kip and for kipctl. It knows each cloud's package, and calls none of
// their methods.
package clouds
