// Package tcp serves ten thousand to a million TCP connections with one handler in any I/O model.
//
// Server.Model selects the model: a goroutine per connection, or event loops over epoll or io_uring. The [Server] calls
// a [Handler], which sees the same bytes, order, errors and events in all models:
//
//	echo := tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
//		c.Write(line)
//		c.WriteString("\n")
//	})
//	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Lines(echo)}
//	err := srv.ListenAndServe(ctx) // until ctx ends; then drains
//
// A [Conn] is for its handler, during a call. A [Ref] is for all other code: other goroutines, handlers of other
// connections, and maps of connections.
//
// All resources are limited; [Limits] lists the limits and their defaults.
package tcp
