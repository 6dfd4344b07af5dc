// Server-sent events over fetch, because EventSource cannot send a token.

const KEY = "headwater-token";

/**
 * Calls on[event](data) for every event, for ever: reconnects after a pause.
 * on.lost() is called when the connection breaks, on.refused(again) when a token is asked for: call again(token).
 */
export async function follow(address, on) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    try {
      const answer = await fetch(address, { headers: token ? { Authorization: "Bearer " + token } : {}, cache: "no-store" });
      if (answer.status === 401) {
        sessionStorage.removeItem(KEY);
        sessionStorage.setItem(KEY, await new Promise((again) => on.refused(again, token != null)));
        continue;
      }
      if (!answer.ok) throw new Error(answer.status);
      await read(answer.body, on);
    } catch (error) {
      console.info("headwater: stream ended:", error.message);
    }
    on.lost();
    await new Promise((later) => setTimeout(later, 2000));
  }
}

async function read(body, on) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const name = /^event: (.*)$/m.exec(event);
      const data = /^data: (.*)$/m.exec(event);
      if (name && data && on[name[1]]) on[name[1]](JSON.parse(data[1]));
    }
  }
}
