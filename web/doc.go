// Package web serves HTTP/1.1, HTTP/2, WebSockets and server-sent events on a [tcp.Server] with handlers of net/http.
// An idle HTTP/1.1 connection takes about 100 bytes and no goroutine. A program replaces the first line below by the
// other two:
//
//	http.ListenAndServe(":8080", mux)
//
//	srv := &tcp.Server{Addr: ":8080", Handler: web.Handler(mux)}
//	srv.ListenAndServe(ctx)
//
// The event loops read requests. A handler runs on a pool of goroutines, or on the loop if its calls are quick; see
// [HTTP] and [Quick]. A [WebSocket] or a stream of [Events] has no goroutine, and works with tcp.Ref, groups and
// broadcasts.
//
// net/http serves HTTP/2 connections. TLS clients that support HTTP/2 use it; see [HTTP].DisableHTTP2 and
// UnencryptedHTTP2.
//
// HTTP/1.1 responses are byte-identical to responses of net/http's server, with these exceptions:
//
//   - Requests that net/http tolerates but other software may interpret differently are rejected; see below.
//   - The connection closes after the response to a CONNECT that was not hijacked.
//   - 1xx responses are not sent to HTTP/1.0 clients.
//   - An invalid Content-Length set by a handler is omitted.
//   - If a handler obtains the Header before it begins to write, later changes of this Header may be sent.
//   - 100 Continue is omitted if the body has already arrived.
//   - If a client still waits for 100 Continue, its connection closes immediately after the response.
//   - If the pool has no capacity, a request is answered with 503 without running its handler.
//   - Request heads are limited to 32 KiB ([HTTP.MaxHeaderBytes]), and must be smaller than Limits.MaxMessage.
//
// Package web rejects requests with
//
//   - lines that end in LF alone, or folded lines
//   - Content-Length together with chunks, or twice
//   - unknown transfer encodings
//   - HTTP/1.x above 1.1
//   - methods with characters other than A-Z, - and _
//   - targets that are neither a path nor a URL with a host, or that contain a user
//   - an empty Host, or a Host with invalid characters
//   - repeated Authorization, Expect, Content-Range or conditional (If-...) fields
package web
