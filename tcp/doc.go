// Package tcp serves ten thousand to a million TCP connections with one handler under any I/O
// model.
//
// The [Server] calls a [Handler] from a goroutine for each connection, or from event loops over
// epoll or io_uring; Server.Model selects which. The handler sees the same bytes, order, errors
// and events under each:
//
//	echo := tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
//		c.Write(line)
//		c.WriteString("\n")
//	})
//	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Lines(echo)}
//	err := srv.ListenAndServe(ctx) // until ctx ends; then drains
//
// A [Conn] is for its handler, during a call. A [Ref] is for all other code: other goroutines,
// handlers of other connections, and maps of connections.
//
// All resources are bounded; [Limits] lists the limits and their defaults.
package tcp
