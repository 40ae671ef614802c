package testkit

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"sync"
)

// Identity returns configurations of a server with a certificate for example.com, and of a client that trusts it.
var Identity = sync.OnceValues(func() (server, client *tls.Config) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, &tls.Config{RootCAs: roots, ServerName: "example.com"}
})
