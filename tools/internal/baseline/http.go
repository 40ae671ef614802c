package baseline

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

func writeHello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, app.HelloText) // the connection ends on an error
}

func serveHTTPUntilDone(ctx context.Context, ln net.Listener, h http.Handler) error {
	var open sync.WaitGroup
	srv := http.Server{
		Handler: h,
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed:
				open.Done()
			}
		},
	}
	serving, end := context.WithCancel(ctx)
	open.Go(func() {
		<-serving.Done()
		srv.Close()
	})
	err := srv.Serve(ln)
	end()
	open.Wait()
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
