package main

import (
	"context"
	"net/http"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TestServeHTTP serves gRPC beside HTTP/1.1 on one port, by ServeHTTP of a grpc.Server in package web.
func TestServeHTTP(t *testing.T) {
	g := newEchoServer()
	defer g.Stop()
	mux := http.NewServeMux()
	mux.Handle("/grpc.testing.BenchmarkService/", g)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })
	serverConfig, clientConfig := testkit.Identity()
	for _, model := range append(tcp.Models(), tcp.Auto) {
		for scheme, creds := range map[string]credentials.TransportCredentials{
			"http": insecure.NewCredentials(), "https": credentials.NewTLS(clientConfig),
		} {
			t.Run(model+" "+scheme, func(t *testing.T) {
				srv := &tcp.Server{Model: model, Handler: &web.HTTP{Handler: mux, UnencryptedHTTP2: true}}
				if scheme == "https" {
					srv.TLSConfig = serverConfig
				}
				addr, _ := testserver.Start(t, srv)
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				checkCalls(t, ctx, addr, creds, 1)
				client := http.Client{Transport: &http.Transport{TLSClientConfig: clientConfig}}
				if res, err := client.Get(scheme + "://" + addr); err != nil || res.StatusCode != http.StatusTeapot {
					t.Errorf("a request that is not gRPC: %v, %v", res, err)
				}
				client.CloseIdleConnections()
			})
		}
	}
}
