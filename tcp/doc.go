// Package tcp serves ten thousand to a million TCP connections from one
// handler, under any I/O model.
//
// A [Handler] is written once. The [Server] calls it from a goroutine for each
// connection, or from event loops over epoll or io_uring, as Server.Model says,
// and the handler sees the same bytes, order, errors and events under each:
//
//	echo := tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
//		c.Write(line)
//		c.WriteString("\n")
//	})
//	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Lines(echo)}
//	err := srv.ListenAndServe(ctx) // until ctx ends; then drains
//
// A [Conn] is for its handler, during a call. A [Ref] is for everyone else:
// other goroutines, other connections' handlers, maps of who is where.
//
// Everything has a bound; [Limits] lists the bounds with their defaults.
package tcp
