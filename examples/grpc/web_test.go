package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
)

// TestServeHTTP serves gRPC beside HTTP/1.1 on one port, by ServeHTTP of a grpc.Server in package web.
func TestServeHTTP(t *testing.T) {
	g := newEchoServer()
	defer g.Stop()
	mux := http.NewServeMux()
	mux.Handle("/grpc.testing.BenchmarkService/", g)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })
	secure := httptest.NewUnstartedServer(nil)
	secure.StartTLS()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	for _, model := range append(tcp.Models(), tcp.Auto) {
		for scheme, creds := range map[string]credentials.TransportCredentials{
			"http": insecure.NewCredentials(), "https": credentials.NewTLS(&tls.Config{RootCAs: roots}),
		} {
			t.Run(model+" "+scheme, func(t *testing.T) {
				srv := &tcp.Server{Model: model, Handler: &web.HTTP{Handler: mux, UnencryptedHTTP2: true}}
				if scheme == "https" {
					srv.TLSConfig = &tls.Config{Certificates: secure.TLS.Certificates}
				}
				addr, _ := testserver.Start(t, srv)
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
				testkit.RequireNoError(t, err)
				c := grpc_testing.NewBenchmarkServiceClient(cc)
				checkCalls(t, ctx, c, 1)
				cc.Close()
				client := secure.Client()
				if res, err := client.Get(scheme + "://" + addr); err != nil || res.StatusCode != http.StatusTeapot {
					t.Errorf("a request that is not gRPC: %v, %v", res, err)
				}
				client.CloseIdleConnections()
			})
		}
	}
}
