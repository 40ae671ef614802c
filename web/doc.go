// Package web serves HTTP/1.1, WebSockets and server-sent events on a [tcp.Server], with
// the handlers of net/http. A program changes one line, and its idle connections cost bytes
// instead of goroutines and buffers:
//
//	http.ListenAndServe(":8080", mux)
//
//	srv := &tcp.Server{Addr: ":8080", Handler: web.Handler(mux)}
//	srv.ListenAndServe(ctx)
//
// The event loops read requests. A handler runs on a pool of goroutines, for as long as it
// runs, or on the loop itself if it is marked as [Quick]. A [WebSocket], and a stream of
// [Events], has no goroutine at all, and works with myriad's Ref, Group and Broadcast like
// every connection.
//
// Responses are those of net/http's server, byte by byte, with these exceptions:
//
//   - HTTP/2 is not spoken. A proxy in front that speaks it to browsers, such as nginx, Caddy
//     or Envoy, speaks HTTP/1.1 to this.
//   - Requests that net/http forgives, and in which others may read something else, are
//     refused: lines that end in LF alone, folded lines, Content-Length beside chunks or
//     twice, unknown transfer encodings, HTTP/1.x beyond 1.1; methods of other characters
//     than A-Z, - and _; targets that are no path and no URL with a host, or have a user;
//     an empty Host, or one of characters that no host has; Authorization, Expect,
//     Content-Range and conditions (If-...) twice.
//   - A connection ends behind the answer to a CONNECT that was not hijacked.
//   - 1xx responses are not sent to clients of HTTP/1.0, an invalid Content-Length of a
//     handler is left out, and a client that waits for 100 Continue in vain is closed at
//     once.
//   - A handler whose request it has no room for does not run: the client gets a 503.
//   - Heads have at most 32 KiB ([HTTP.MaxHeaderBytes]), and less than Limits.MaxMessage.
package web
