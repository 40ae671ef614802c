// Package websocket is the client's side of the WebSocket protocol, RFC 6455,
// without input and output: it appends what is to be sent to a slice, and takes
// what has arrived from one. Who has a million connections can't have a
// goroutine or a buffer for each; a Reader has 16 bytes.
//
//	out = AppendRequest(out, host, path, header, key)  the upgrade
//	n, err := CheckResponse(in, key)                   has the server agreed?
//	out = AppendFrame(out, OpText, mask, message)      each message is a frame
//	part, n, err := reader.Next(in)                    what the server sends
//
// A server that breaks the rules of RFC 6455 is an error, with these
// exceptions: that text is UTF-8 is not checked, neither that of a message nor
// the reason of a close, and a subprotocol that the server chooses is not
// compared with those that were asked for. No extension is offered, so
// messages are never compressed and the reserved bits are always 0.
//
// Nothing here answers by itself: it is the caller who answers a Ping with a
// Pong of the same payload, and a Close with a Close.
//
// All functions are safe for concurrent use; a Reader belongs to one goroutine
// at a time.
package websocket
