package lab

import (
	"context"
	"net"
	"strings"
	"testing"
)

// TestPlainAdmin counts connections as they come and go.
func TestPlainAdmin(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	shown, done := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		done <- Plain(ctx, ln, PlainOptions{App: Echo, Admin: "127.0.0.1:0", AdminListening: func(a net.Addr) { shown <- a }})
	}()
	m := MetricsSource{Addr: (<-shown).String()}
	for n := 1; n <= 3; n++ {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		send(t, conn, "a")
		want(t, conn, "a") // it has been accepted
		var s Sample
		if err := s.ask(t.Context(), m, 1); err != nil || s.Connections != n || s.Go == nil || s.Go.Sys == 0 {
			t.Errorf("got %+v, %v, want %d connections", s, err, n)
		}
		var several Sample
		if err := several.ask(t.Context(), m, 2); err != nil || several.Connections != n || several.Go != nil {
			t.Errorf("got %+v, %v, want no memory of one of several processes", several, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v, want nil", err)
	}
	if conn, err := net.Dial("tcp", m.Addr); err == nil {
		conn.Close()
		t.Errorf("the metrics are there after the end")
	}
}

// TestPlainAdminFails has an address that is taken, and an app without it.
func TestPlainAdminFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := ln.Addr().String()
	if err := Plain(t.Context(), ln, PlainOptions{App: Echo, Admin: taken}); err == nil || !strings.Contains(err.Error(), "metrics: ") {
		t.Errorf("got %v, want that the address is taken", err)
	}
	if conn, err := net.Dial("tcp", taken); err == nil {
		conn.Close()
		t.Errorf("the listener is open after the end")
	}
	if err := (PlainOptions{App: HTTP, Admin: taken}).Check(); err == nil || !strings.Contains(err.Error(), "with http; expected it with another app") {
		t.Errorf("got %v, want a ScenarioError", err)
	}
}
