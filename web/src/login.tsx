import { useState } from "preact/hooks";
import { useStore } from "./store.ts";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";
import { said } from "./views.ts";

export function Login() {
  const first = useStore((state) => state.loginError);
  const [error, setError] = useState(first);
  const enter = (event: Event) => {
    event.preventDefault();
    const token = new FormData(event.target as HTMLFormElement).get("token") as string;
    sync.logIn(token).catch((failure: unknown) => setError(said(failure)));
  };
  return (
    <main class="login">
      <h1>{texts.title}</h1>
      <p>{texts.login.how}</p>
      <form onSubmit={enter}>
        <label for="token">{texts.login.token}</label>
        <input id="token" name="token" type="password" autocomplete="off" required />
        <button type="submit">{texts.login.enter}</button>
      </form>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
    </main>
  );
}
