// Package web serves HTTP/1.1, WebSockets and server-sent events on a [tcp.Server] with handlers
// of net/http. A program changes one line, and its idle connections cost bytes instead of
// goroutines and buffers:
//
//	http.ListenAndServe(":8080", mux)
//
//	srv := &tcp.Server{Addr: ":8080", Handler: web.Handler(mux)}
//	srv.ListenAndServe(ctx)
//
// The event loops read requests. A handler runs on a pool of goroutines, or on the loop itself if
// it is marked as [Quick]. A [WebSocket] or a stream of [Events] has no goroutine, and works with
// tcp.Ref, groups and broadcasts like every connection.
//
// Responses are identical to those of net/http's server, byte by byte, with these exceptions:
//
//   - HTTP/2 is not supported. A proxy that speaks it to browsers, such as nginx, Caddy or Envoy,
//     can forward requests as HTTP/1.1.
//   - Requests that net/http tolerates but that other software may interpret differently are
//     rejected: lines that end in LF alone, folded lines, Content-Length together with chunks or
//     twice, unknown transfer encodings, HTTP/1.x above 1.1; methods with characters other than
//     A-Z, - and _; targets that are neither a path nor a URL with a host, or that contain a
//     user; an empty Host or one with invalid characters; repeated Authorization, Expect,
//     Content-Range and conditional (If-...) fields.
//   - The connection closes after the response to a CONNECT that was not hijacked.
//   - 1xx responses are not sent to HTTP/1.0 clients, an invalid Content-Length set by a handler
//     is omitted, and the connection of a client still waiting for 100 Continue is closed at
//     once.
//   - A request for which the pool has no capacity is answered with 503 without running its handler.
//   - Heads are limited to 32 KiB ([HTTP.MaxHeaderBytes]), and must be smaller than
//     Limits.MaxMessage.
package web
