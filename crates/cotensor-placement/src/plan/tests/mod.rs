mod cyclic;
mod optimum;
