package kip

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/credentialproviders"
)

// readRegistries reads the files of cells.registries, for new cells.
func readRegistries(all []config.Registry) (list []agentapi.Registry, err error) {
	for i, r := range all {
		is := agentapi.Registry{Host: r.Host, PlainHTTP: r.PlainHTTP}
		for _, f := range []struct {
			name string
			into *string
		}{{r.CAFile, &is.CA}, {r.ClientCertificateFile, &is.Certificate}, {r.ClientKeyFile, &is.Key}} {
			if f.name == "" {
				continue
			}
			text, err := os.ReadFile(f.name)
			if err != nil {
				return nil, fmt.Errorf("cells.registries[%d]: %w", i, err)
			}
			*f.into = string(text)
		}
		if is.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(is.CA)) {
			return nil, fmt.Errorf("cells.registries[%d].caFile: %s has no certificate in PEM", i, r.CAFile)
		}
		if is.Certificate != "" {
			if _, err := tls.X509KeyPair([]byte(is.Certificate), []byte(is.Key)); err != nil {
				return nil, fmt.Errorf("cells.registries[%d]: %s and %s: %w", i, r.ClientCertificateFile, r.ClientKeyFile, err)
			}
		}
		list = append(list, is)
	}
	return list, nil
}

// credentialProviders are those that the cells' kubelets ask.
func credentialProviders(cfg *config.Config) (all []credentialproviders.Provider) {
	for _, p := range cfg.Cells.CredentialProviders {
		all = append(all, p.Of())
	}
	return all
}
