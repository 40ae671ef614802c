package testkit

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"sync"
)

// Identity returns two TLS configurations: one for a server with a certificate for example.com, and one for a client
// that trusts this certificate. All calls return the same configurations.
var Identity = sync.OnceValues(func() (server, client *tls.Config) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, &tls.Config{RootCAs: roots, ServerName: "example.com"}
})
