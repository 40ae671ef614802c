package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
)

// serveGobwas serves the app ws on net/http with gobwas/ws: a goroutine for each connection, and a buffered reader, so
// that a small message takes one read and one write. It only echoes; it does not broadcast or ping.
func serveGobwas(ctx context.Context, ln net.Listener, ready func()) error {
	var sockets sync.Map // of the net.Conn of each WebSocket
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, _, err := ws.UpgradeHTTP(r, w)
		if err != nil {
			return // it was answered
		}
		sockets.Store(conn, nil)
		defer sockets.Delete(conn)
		defer conn.Close()
		if ctx.Err() == nil {
			echoGobwas(struct {
				io.Reader
				io.Writer
			}{buffered, conn})
		}
	})}
	ready()
	return serveUntilDone(ctx, func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}, func() error {
		err := srv.Close()
		for conn := range sockets.Range {
			conn.(net.Conn).Close()
		}
		return err
	})
}

func echoGobwas(conn io.ReadWriter) {
	for {
		message, kind, err := wsutil.ReadClientData(conn)
		if err != nil || wsutil.WriteServerMessage(conn, kind, message) != nil {
			return
		}
	}
}
